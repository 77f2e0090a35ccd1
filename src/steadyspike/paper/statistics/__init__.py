"""Statistics of the paper: gradient metrics, projections, other starts, and the parameters of each method."""
