"""What docs/extend.md says, done as it says: a method, a model, data, a stream, a trigger, a tracker of one's own."""

import re
from pathlib import Path

from tests.programs import rows
from tests.zygote import ROOT, Zygote

OWN = (
    *("method=halve", "model=wide", "dataset=rings", "benchmark=mirrored"),
    *("trigger=high_loss", "tracker=lines", "--config-dir=conf"),
)


def test_what_is_shown_is_added_and_runs(tmp_path: Path, zygote: Zygote) -> None:
    text = (ROOT / "docs/extend.md").read_text()
    assert " ".join(OWN) in re.sub(r" \\\n +", " ", text)
    parts = re.split(r"^## ", text, flags=re.M)[1:]
    modules = [re.search(r"^`([\w/]+)\.py`.*?```python\n(.*?)```", part, re.S | re.M).groups() for part in parts]
    files = re.findall(r"`conf/(\w+/\w+\.yaml)`:\n\n```yaml\n(.*?)```", text, re.S)
    assert len(modules) == len(files) == 6
    for name, code in modules:
        module = name.rpartition("/")[2]
        (tmp_path / f"{module}.py").write_text(code)
        dotted = name.replace("/", ".")
        files = [(file, yaml.replace(f"_target_: {dotted}.", f"_target_: {module}.")) for file, yaml in files]
    for file, yaml in files:
        path = tmp_path / "conf" / file
        path.parent.mkdir(parents=True)
        path.write_text(yaml)
    answer = zygote.run(tmp_path, "vision.train", *OWN, "epochs=3", "progress=false")
    assert answer.code == 0, answer.err
    (folder,) = (tmp_path / "runs" / "vision").glob("mirrored-rings-halve-s0-*")
    assert (folder / "DONE").exists()
    found = rows(folder)
    assert (folder / "lines.txt").read_text().count("\n") == len(found)
    assert [row["reason"] for row in found if row.get("kind") == "firing"][:1] == ["loss above 0.5"]
    assert {row["phase"] for row in found} == set(range(6))
