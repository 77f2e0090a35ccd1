"""What every part that writes files and reads them again shares."""
