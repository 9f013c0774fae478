"""From CSV, Parquet and Arrow files to a federation, by a declared schema."""
