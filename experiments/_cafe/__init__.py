"""The studies of CAFE: problems, runs, and the cells of the tables."""
