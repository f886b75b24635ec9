"""Tokenise texts: `python -m language.prepare dataset=pydoc`, `dataset=text path=my/notes tokenizer=gpt2`.

Documents are tokenised in order into `train.bin.part` and `val.bin.part`, which are renamed when both are complete.
"""

import inspect
import logging
import os
import platform
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from filelock import FileLock
from hydra.core.config_store import ConfigStore
from hydra.utils import get_method
from omegaconf import MISSING, DictConfig, OmegaConf
from tqdm import tqdm

from harness.config.build import build
from harness.config.checks import Group, check_options
from harness.config.config import Paths
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from harness.config.paths import expanded
from harness.program.outcome import job
from harness.program.start import run_program
from harness.run.contents import with_contents
from harness.run.identity import check_name, digest
from harness.run.own_code import digest_of_code, own_source
from language.corpora import VERSION, Corpus
from language.data import SPLITS, TokenFile, open_tokens, write_header
from language.tokenizers import Tokenizer, get_tokenizer

log = logging.getLogger(__name__)
CODE = "_target_ (content)"  # the digest of code of the user's own, which the folder's name has
BATCH = 500  # documents that are tokenised together


@dataclass
class PrepareConfig:
    """Options of `language.prepare`; `conf/language_prepare.yaml` fills them in."""

    program: str = "language.prepare"
    dataset: Group = MISSING
    path: str | None = None  # file or folder of dataset=text
    tokenizer: str = "byte"
    progress: bool = True
    check: bool = True  # hash files that exist already, however large they are
    paths: Paths = MISSING


ConfigStore.instance().store(name="language_prepare_schema", node=PrepareConfig)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="language_prepare")
def main(config: DictConfig) -> None:
    """Prepare one corpus, unless that is already done."""
    with job(config) as outcome:
        check_options(config)
        options: Any = OmegaConf.to_container(config.dataset, resolve=True)
        if "_target_" not in options:
            raise ConfigError(f"dataset={options['name']} is a pair of corpora: prepare each of them by itself")
        if config.path is not None:
            if "path" not in options:
                raise ConfigError(f"path= goes with dataset=text, not with dataset={options.get('name')}")
            options["path"] = config.path
        tokenizer = get_tokenizer(config.tokenizer)
        files = prepare(expanded(config.paths.data), options, tokenizer, config.progress, config.check)
        for split, file in files.items():
            print(f"{split}: {len(file):,} tokens in {file.path}")
        outcome.state = "done"


def corpus_folder(data: Path, options: dict[str, Any], tokenizer: Tokenizer) -> Path:
    """Return the folder of a corpus's token files, named by the corpus, the tokenizer and a digest of the options.

    For a corpus that comes with Python or torch their versions count, too, and that of how we split it; for one that
    code of the user's own makes, this code.
    """
    name = check_name("dataset.name", str(options["name"]))
    made_by = {}
    if options.get("local") and "path" not in options:
        made_by = {"corpora": VERSION, "python": platform.python_version(), "torch": torch.__version__}
    if (code := own_source(options["_target_"])) is not None:
        made_by["code"] = digest_of_code(code)
    return data / "language" / f"{name}-{tokenizer.name}-{digest(options | made_by)}"


def load(
    data: Path, options: dict[str, Any], tokenizer: Tokenizer, local: bool, prepares: bool = True
) -> dict[str, TokenFile]:
    """Return the token files of a corpus, by split; they are prepared now if they are missing and need no download.

    Args:
        data: `paths.data`.
        options: options of the corpus, as in `conf/dataset`.
        tokenizer: the model's tokenizer.
        local: whether the texts are on this machine.
        prepares: False: files that are missing are an error wherever the texts are, so that nothing is written.

    Raises:
        ConfigError: the files are missing and the texts are not on this machine, or they are damaged.
    """
    folder = corpus_folder(data, options, tokenizer)
    ready = all((folder / f"{split}.json").exists() for split in SPLITS)
    if local and (ready or prepares):
        return prepare(data, options, tokenizer, progress=False, hash_large_files=False)
    if not ready:
        parameters = inspect.signature(get_method(options["_target_"])).parameters
        arguments = ""  # those that differ from their defaults, for the command that prepares the corpus
        for name, value in options.items():
            if name in parameters and value != parameters[name].default:
                arguments += f" dataset.{name}={'null' if value is None else value}"
        raise ConfigError(
            f"dataset {options['name']} is not prepared in {folder}: run python -m language.prepare "
            f"dataset={options['name']}{arguments} tokenizer={tokenizer.name} paths.data={data} first"
        )
    fingerprint = _fingerprint(data, options)
    return {split: open_tokens(folder / f"{split}.bin", tokenizer, fingerprint) for split in SPLITS}


def _fingerprint(data: Path, options: dict[str, Any]) -> str:
    """Return a digest of the existing files and folders that a corpus's options name; empty if there are none."""
    options_and_contents = with_contents(options, data / "language" / ".contents")
    contents = {key: value for key, value in options_and_contents.items() if key not in {*options, CODE}}
    return digest(contents, 64) if contents else ""


def prepare(
    data: Path, options: dict[str, Any], tokenizer: Tokenizer, progress: bool = True, hash_large_files: bool = True
) -> dict[str, TokenFile]:
    """Write a corpus's token files, or check those that exist, and return them by split.

    Args:
        data: `paths.data`.
        options: options of the corpus, as in `conf/dataset`.
        tokenizer: the model's tokenizer.
        progress: show a progress bar.
        hash_large_files: hash existing files even if they are large, see `open_tokens`.

    Raises:
        ConfigError: texts, a package or disk space are missing, or existing files are damaged.
    """
    folder = corpus_folder(data, options, tokenizer)
    ready = all((folder / f"{split}.json").exists() for split in SPLITS)
    fingerprint = "" if "path" in options else _fingerprint(data, options)
    # A user's own files may have changed since they were prepared, so their corpus is read in any case.
    if not ready or "path" in options or (fingerprint and options.get("local")):
        arguments = {key: value for key, value in options.items() if key not in NOT_OPTIONS}
        corpus: Corpus = build("dataset", arguments, Corpus)
        fingerprint = corpus.fingerprint or fingerprint or _fingerprint(data, options)
        corpus = replace(corpus, fingerprint=fingerprint)
    if not ready:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _make(folder, corpus, tokenizer, progress)
        except OSError as error:
            raise ConfigError(f"cannot write to {folder}: {error.strerror or error} (see paths.data=)") from None
    files = {}
    for split in SPLITS:
        files[split] = open_tokens(folder / f"{split}.bin", tokenizer, fingerprint, hash_large_files)
    expected = (options.get("expected_tokens") or {}).get(tokenizer.name)
    if expected and len(files["train"]) != expected:
        log.warning("%s has %d training tokens, %d are usual", folder, len(files["train"]), expected)
    return files


NOT_OPTIONS = ("name", "local", "expected_tokens")  # entries of conf/dataset that are no arguments of the corpus


def _make(folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: bool) -> None:
    """Tokenise all documents into the token files of a folder; other processes that want to do it wait."""
    with FileLock(folder / "prepare.lock"):
        if all((folder / f"{split}.json").exists() for split in SPLITS):  # another process has written them
            return
        _tokenise(folder, corpus, tokenizer, progress)
        for split in SPLITS:
            os.replace(folder / f"{split}.bin.part", folder / f"{split}.bin")
        for split in SPLITS:
            write_header(folder / f"{split}.bin", tokenizer, f"{corpus.source}, {split}", corpus.fingerprint)


def _tokenise(folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: bool) -> None:
    """Write the tokens of each split into `<split>.bin.part`."""
    bar = tqdm(total=corpus.count, desc=folder.name, unit="doc", disable=not progress)
    train_part, val_part = (folder / f"{split}.bin.part" for split in SPLITS)
    for part in (train_part, val_part):
        part.unlink(missing_ok=True)  # of a process that was killed; a link is not followed
    with bar, train_part.open("xb") as train, val_part.open("xb") as val:
        documents = corpus.documents()
        while batch := list(islice(documents, BATCH)):
            tokens = tokenizer.encode([text for text, _ in batch])
            for (_, held_out), ids in zip(batch, tokens, strict=True):
                file = val if held_out else train
                file.write(ids.astype(tokenizer.dtype, copy=False).tobytes())
                if corpus.ends:
                    file.write(np.array([tokenizer.end], tokenizer.dtype).tobytes())
            bar.update(len(batch))


if __name__ == "__main__":
    run_program(main, "language_prepare")
