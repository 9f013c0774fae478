"""What releases cost: composition, calibration, the ledger and the statement. The only importer of dp_accounting."""
