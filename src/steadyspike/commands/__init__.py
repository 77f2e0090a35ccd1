"""The commands of `steadyspike`, one file each; heavy imports happen inside them."""
