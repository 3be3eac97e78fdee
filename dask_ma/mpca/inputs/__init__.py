"""What users give a network to train on, as rows."""
