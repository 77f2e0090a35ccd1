"""Statistics of the paper: gradient metrics, projections, other starts, and what a method stores."""
