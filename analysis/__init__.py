"""Read the results of runs and make tables, figures and a report of them."""
