"""Commands that run the pipeline's jobs."""
