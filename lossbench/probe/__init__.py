"""The probe: length bias of every mode by gradients on frozen rollouts."""
