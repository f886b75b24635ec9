#!/usr/bin/env bash
# A quarter of an hour of one GPU: the tests that need one, what a GPU costs, and a seed of figure 2a at the paper's size.
# `scripts/quarter_hour.sh --help` says what each part does and how long it takes.
cd "$(dirname "$0")/.." && exec python -m scripts.quarter_hour "$@"
