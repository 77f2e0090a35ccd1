"""One page with a network: it runs in the browser in the same way as the integer network, and shows every step."""
