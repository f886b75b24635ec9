"""SAC on humanoids (figure 4b of the paper): `python -m rl.sac`."""
