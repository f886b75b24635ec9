"""Programs that reproduce results, measure speed and record what tests compare with."""
