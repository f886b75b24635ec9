"""The search of methods' options, alike for all methods and programs: what may be searched, the trials, their table."""
