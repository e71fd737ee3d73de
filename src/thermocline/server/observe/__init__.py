"""What the node reports about itself: health, metrics, log lines, jobs, systemd notifications."""
