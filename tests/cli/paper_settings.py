"""Settings of the papers' experiments and tasks, typed from their appendices."""

BLACKOUT = {  # section 3, appendices E to I, and the published code where these are silent
    "batch_size": 256,
    "ema_decay": 0.9999,
    "trainer.max_steps": 300000,
    "optimizer.lr": 2e-4,
    "optimizer.warmup_steps": 0,
    "trainer.precision": "32-true",
    "sampler.bfloat16": False,
    "optimizer.factory._target_": "torch.optim.Adam",
    "schedule.num_steps": 1000,
    "schedule.grid.final_time": 15.0,
    "sampler.num_steps": 1000,
    "flip": True,
    "loss.kind": "instantaneous",
    "loss.weighting": "paper",
    "network.body._target_": "blackout.networks.NCSNpp",
    "network.body.channels": 128,
    "network.body.multipliers": [1, 2, 2, 2],
    "network.body.blocks_per_level": 4,
    "network.body.dropout": 0.1,
    "head._target_": "blackout.diffusion.SoftplusHead",
    "dataset.validation": 0,
}


SYMMETRIC = {  # appendix G.5, Tables 8 and 10
    "batch_size": 64,
    "network.width": 128,
    "network.depth": 7,
    "network.heads": 8,
    "network.expansion": 4,
    "network.dropout": 0.1,
    "network.norm_first": False,
    "optimizer.factory._target_": "torch.optim.AdamW",
    "optimizer.factory.betas": [0.9, 0.98],
    "optimizer.factory.eps": 1e-9,
    "optimizer.factory.weight_decay": 1e-2,
    "optimizer.noam": True,
    "optimizer.warmup_steps": 51600,
    "trainer.max_steps": 112560,
    "decoder.inner": 200,
    "decoder.width": 20,
    "loss.walks": 3,
    "reverse._target_": "blackout.permutations.shuffle.ReverseGPL",
    "dataset.held_out": 10000,
}


LATENT = {
    "loss._target_": "blackout.permutations.shuffle.LabelFreeLoss",
    "loss.draws": 10,
    "loss.entropy": 0.05,
    "loss.decay": 0.995,
}


ONE_PERMUTATION = {  # appendix G.5
    "trainer.max_steps": 30000,
    "dataset.held_out": 2560,
    "network.depth": 7,
    "network.width": 128,
    "network.heads": 8,
    "network.dropout": 0.1,
}


TOURS = {  # appendix G.5
    "optimizer.lr": 2e-4,
    "optimizer.factory.betas": [0.9, 0.999],
    "optimizer.factory.eps": 1e-8,
    "optimizer.factory.weight_decay": 1e-4,
    "optimizer.noam": False,
    "optimizer.warmup_steps": 0,
    "loss.walks": 1,
    "reverse._target_": "blackout.permutations.shuffle.ReverseGPL",
    "dataset.held_out": 1280,
    "dataset.instances": 1512000,
}


FLOW = {  # appendix E.1
    "network._target_": "blackout.networks.LETransformer",
    "network.layers": 3,
    "network.heads": 4,
    "network.channels": 128,
    "rollout.num_times": 64,
    "simulation.num_steps": 64,
    "rollout.clip": 5.0,
    "batch_size": 128,
    "optimizer.lr": 1e-3,
    "optimizer.factory._target_": "torch.optim.AdamW",
    "trainer.max_steps": 100000,
}


SMALL_FLOW = FLOW | {
    "network.channels": 64,
    "trainer.max_steps": 50000,
    "target.coupling": 0.2,
    "target.field": 0.2,
}


GRAPHS = FLOW | {  # appendix E.3
    "network._target_": "blackout.networks.LETransformer",
    "network.layers": 5,
    "network.channels": 256,
    "batch_size": 256,
    "optimizer.lr": 1e-4,
    "target.num_training": 1000,
    "target.num_test": 100,
    "target.inverse_temperature": 5.0,
    "rollout.horizon": 0.02,
}


ENERGIES = {  # appendix E.2
    "rates._target_": "blackout.networks.LETransformer",
    "rates.layers": 3,
    "rates.heads": 4,
    "rates.channels": 128,
    "rollout.num_times": 64,
    "rollout.clip": 5.0,
    "batch_size": 128,
    "flow_steps": 10,
    "energy_lr": 1.0,
    "optimizer.lr": 1e-4,
    "optimizer.factory._target_": "torch.optim.AdamW",
    "energy.widths": [256, 256, 256],
}


COUPLINGS = {name: value for name, value in ENERGIES.items() if name != "energy.widths"} | {
    "optimizer.lr": 1e-3,
    "energy_lr": 0.1,
    "energy.l1": 0.05,
    "target_samples": 2000,
}


CODES = {  # appendix E
    "batch_size": 1024,
    "optimizer.lr": 3e-4,
    "network.width": 128,
    "network.heads": 8,
    "network.depth": 8,
    "network.dropout": 0.05,
    "network.context": "prefix",
}


# table 9 of SymmetricDiffusers
JIGSAWS = {2: [0, 2, 7], 3: [0, 3, 5, 9], 4: [0, 4, 6, 10], 5: [0, 5, 7, 11], 6: [0, 6, 8, 12]}


# its Table 11
SORTS = {
    3: [0, 2, 7],
    5: [0, 2, 8],
    7: [0, 3, 8],
    9: [0, 3, 5, 9],
    15: [0, 4, 7, 10],
    32: [0, 5, 7, 12],
    52: [0, 5, 6, 7, 10, 13],
    100: [0, 8, 10, 15],
    200: [0, 9, 10, 12],
}


# steps of Table 6 for 9, 32 and 52 numbers
WALKS = {"irs": (9, 12, 13), "it": (15, 55, 105), "ii": (25, 110, 205)}


D3PM = {
    "process.num_steps": 1000,
    "batch_size": 256,
    "trainer.max_steps": 300000,
    "dataset.validation": 0,
}


PUBLISHED = {
    "blackout/table1": BLACKOUT,
    "blackout/table2_binarized_mnist": BLACKOUT
    | {"schedule.grid.final_time": 10.0, "flip": False, "trainer.max_steps": 250000},
    "blackout/table2_celeba64": BLACKOUT | {"batch_size": 100, "flip": False},
    "blackout/table2_d3pm_absorbing": D3PM,
    "blackout/table2_d3pm_gaussian": D3PM,
    "blackout/table2_tauldr10": {
        "sampler.num_steps": 1000,
        "sampler.correction.steps": 10,
        "dataset.validation": 0,
    },
    **{
        f"symmetric/table1_mnist dataset.pieces={n}": SYMMETRIC
        | LATENT
        | {"shuffle.schedule": schedule, "dataset.pieces": n}
        for n, schedule in JIGSAWS.items()
    },
    **{
        f"symmetric/table1_cifar10 dataset.pieces={n}": SYMMETRIC
        | LATENT
        | {
            "shuffle.schedule": JIGSAWS[n],
            "optimizer.warmup_steps": 46000,
            "trainer.max_steps": 93840,
        }
        for n in (2, 3, 4)
    },
    **{
        f"symmetric/table2 dataset.length={n}": SYMMETRIC
        | {
            "shuffle.schedule": schedule,
            "dataset.length": n,
            "network.encoder.channels": 32,
            "network.encoder.features": 128,
        }
        for n, schedule in SORTS.items()
        if n <= 100
    },
    "symmetric/table2_n200": SYMMETRIC
    | {
        "shuffle.schedule": SORTS[200],
        "network.width": 768,
        "network.expansion": 1,
        "network.depth": 12,
        "loss.walks": 1,
        "network.heads": 12,
        "optimizer.noam": False,
        "optimizer.warmup_steps": 2350,
        "optimizer.lr": 5e-5,
        "optimizer.decay_steps": 112560,
        "reverse._target_": "blackout.permutations.shuffle.ReversePL",
        "loss._target_": "blackout.permutations.shuffle.RandomTimeLoss",
    },
    "symmetric/table2 dataset.length=52 reverse=pl": SYMMETRIC
    | {
        "shuffle.schedule": SORTS[52],
        "reverse._target_": "blackout.permutations.shuffle.ReversePL",
    },
    **{
        f"symmetric/table6_{reverse} dataset.length={n}": {
            "shuffle.schedule": list(range(steps + 1)),
            "dataset.length": n,
        }
        for reverse, each in WALKS.items()
        for n, steps in zip((9, 32, 52), each, strict=True)
    },
    "symmetric/table4_tsp20": TOURS
    | {
        "batch_size": 512,
        "shuffle.schedule": [0, 4, 5, 7],
        "decoder.inner": 256,
        "decoder.width": 256,
        "network.width": 256,
        "network.heads": 8,
        "network.expansion": 4,
        "network.dropout": 0.1,
        "trainer.max_steps": 147700,
        "dataset.cities": 20,
    },
    "symmetric/table4_tsp50": TOURS
    | {
        "batch_size": 256,
        "shuffle.schedule": [0, 5, 6, 7],
        "decoder.inner": 768,
        "decoder.width": 768,
        "network.width": 128,
        "network.depth": 7,
        "trainer.max_steps": 1476750,
        "dataset.cities": 50,
    },
    "symmetric/table5_n100": ONE_PERMUTATION | {"batch_size": 512, "shuffle.schedule": SORTS[100]},
    "symmetric/table5_n200": ONE_PERMUTATION | {"batch_size": 128, "shuffle.schedule": SORTS[200]},
    **{
        f"symmetric/table7 shuffle.schedule={str(schedule).replace(' ', '')}": SYMMETRIC
        | {"shuffle.schedule": schedule, "dataset.length": 100}
        for schedule in (
            [0, 15],
            [0, 8, 9, 15],
            [0, 7, 8, 9, 15],
            [0, 7, 8, 10, 15],
            [0, 8, 10, 15],
        )
    },
    "sgdd/prior_mnist": {  # appendix C.1
        "dataset.validation": 0,
        "batch_size": 32,
        "optimizer.lr": 3e-4,
        "optimizer.factory._target_": "torch.optim.AdamW",
        "process._target_": "blackout.diffusion.Uniform",
        "network.body.width": 768,
        "network.body.depth": 12,
        "network.body.conditioning": 128,
        "network.body.patch": 1,
        "schedule.grid.final_time": 20.0,
    },
    "dnfs/figure1": SMALL_FLOW,
    "dnfs/figure4 density=circles": FLOW
    | {
        "rollout.num_times": 128,
        "simulation.num_steps": 128,
        "optimizer.lr": 1e-4,
    },
    "dnfs/figure5": FLOW | {"target.size": 10, "target.coupling": 0.2, "target.field": 0.0},
    "dnfs/table2 dataset.density=pinwheel": ENERGIES | {"dataset.density": "pinwheel"},
    "dnfs/table4 target.coupling=0.6": COUPLINGS | {"target.size": 10, "target.coupling": 0.6},
    "dnfs/table4 target.coupling=-0.4 target.size=9": COUPLINGS
    | {"target.size": 9, "target.coupling": -0.4},
    "dnfs/table1": GRAPHS
    | {
        "target.nodes": [16, 20],
        "target.p": 0.19,
        "target.problem": "mis",
        "target.kind": "er",
    },
    "dnfs/table1 graphs=large": GRAPHS | {"target.nodes": [64, 75], "target.p": 0.15},
    "dnfs/table5 graphs=medium": GRAPHS
    | {"target.nodes": [32, 40], "target.problem": "maxcut", "target.kind": "ba"},
    "factorized/figure5 dataset.pieces=3": CODES
    | {"network.depth": 7, "network.dropout": 0.1, "dataset.pieces": 3},
    "factorized/figure6": CODES
    | {"dataset.length": 10, "dataset.share": 0.2, "callbacks.scores.num_samples": 10000},
    "factorized/figure7 dataset.length=20": CODES
    | {"network.width": 256, "network.depth": 10, "dataset.length": 20},
}
