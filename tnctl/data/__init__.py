"""Files to windows of ids, numbers and labels."""
