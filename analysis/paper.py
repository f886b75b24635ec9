"""Final values read off the figures of the paper (Han et al., ICLR 2026, arXiv 2602.08040), for orientation only."""

FIRE_LOSS, SNP_LOSS, FULL_RESET_LOSS = 3.02, 3.03, 3.057  # figure 3, the same at each starting checkpoint

# (benchmark or "language", data set or starting checkpoint) -> method -> test accuracy or validation loss at the end
FINAL: dict[tuple[str, str], dict[str, float]] = {
    ("warm_start", "cifar10"): {
        "full_reset": 0.847, "fire": 0.829, "dash": 0.826, "parseval": 0.825, "snp": 0.803, "base": 0.778,
    },
    ("warm_start", "cifar100"): {"dash": 0.36, "full_reset": 0.358, "fire": 0.325, "snp": 0.325, "base": 0.278},
    ("warm_start", "tinyimagenet"): {
        "full_reset": 0.43, "fire": 0.425, "parseval": 0.41, "l2init": 0.36, "base": 0.178,
    },
    ("continual", "cifar10"): {"fire": 0.85},
    ("class_incremental", "tinyimagenet"): {"fire": 0.43},
} | {
    ("language", start): {"fire": FIRE_LOSS, "snp": SNP_LOSS, "base": base, "full_reset": FULL_RESET_LOSS}
    for start, base in (("best", 3.045), ("30k", 3.065), ("60k", 3.055))
}  # fmt: skip
