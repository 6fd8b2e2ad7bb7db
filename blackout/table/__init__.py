"""`python -m blackout.table`: a published table, run cell by cell and printed beside the published figures."""
