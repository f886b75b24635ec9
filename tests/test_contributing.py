"""The ten lines of CONTRIBUTING.md that add a method, done as they say."""

import re
from pathlib import Path

from tests.zygote import ROOT, Zygote


def test_a_method_of_ones_own(tmp_path: Path, zygote: Zygote) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (yaml,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    (tmp_path / "halve.py").write_text(code)
    (tmp_path / "my_conf" / "method").mkdir(parents=True)
    (tmp_path / "my_conf" / "method" / "halve.yaml").write_text(yaml.replace("fire_core.methods.halve", "halve"))
    answer = zygote.run(
        tmp_path,
        "vision.train",
        "method=halve",
        "scale=smoke",
        "tracker=none",
        "progress=false",
        "--config-dir=my_conf",
    )
    assert answer.code == 0, answer.err
    assert len(list((tmp_path / "runs" / "vision").glob("random_labels-digits-halve-s0-*/DONE"))) == 1
