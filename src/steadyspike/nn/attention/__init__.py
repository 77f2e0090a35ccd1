"""Products of spikes for attention, and firing rates per head."""
