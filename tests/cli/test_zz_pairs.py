from tests.cli.test_task_methods import *
from tests.cli.conftest import run, train
import time
def test_all(run, monkeypatch, tmp_path):
    for name in ("mnist", "binarized_mnist"):
        monkeypatch.setattr(f"blackout.data.{name}", stand_in(name))
    o = run("train", "dataset=binarized_mnist", "process=uniform", "network=unet", "debug=fast", "network.body.channels=8","run_id=b",f"runs_dir={tmp_path}", "trainer.accelerator=cpu")
    assert o.code==0, o.err
    o = run("train", *TINY, "trainer.max_steps=4", "run_id=a", f"runs_dir={tmp_path}", "metrics=none")
    assert o.code==0, o.err
    import sys
    out=open("/tmp/papers/pairs.out","w")
    for k,(task,method) in enumerate(PAIRS):
        t0=time.time()
        law = task in LAWS
        words=[f"task={task}", f"posterior={method}", *[w.replace("STEPS","law.num_steps" if law else "sampler.num_steps") for w in METHODS[method]], f"out={tmp_path}/{k}", "num_samples=1", "device=cpu"]
        if law: words += [*LAWS[task]]
        elif task in PHOTONS: words += [f"ckpt={tmp_path}/digits/a","measurement=test:1"]
        else: words += [f"ckpt={tmp_path}/binarized_mnist/b"]+ ([] if "class" in task or "table9" in task else ["measurement=test:1"])
        if "class" in task or "table9" in task: words+=["operator.classifier.examples=16","operator.classifier.epochs=1"]
        o=run("sample",*words)
        print(task,method,o.code,round(time.time()-t0,2),o.err[-300:] if o.code else "",file=out,flush=True)
