"""Reading Parquet files on the ranks: shards, shuffling, and reading ahead."""
