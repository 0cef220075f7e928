"""What is done when backends fail or are full: rules that do no I/O and read no clock."""
