"""A rank of a job: its context, its engine and what it reports."""
