"""Settings: the choices in conf/, how they are composed, checked and explained."""
