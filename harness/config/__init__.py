"""Options of programs: configuration, checks, errors, command line."""
