"""Lightning callbacks, one per task: stop, select the best epoch, watch health, record, display, save."""
