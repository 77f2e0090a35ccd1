"""One page with a network in it: it runs in the browser as the integer network does, and shows every step."""
