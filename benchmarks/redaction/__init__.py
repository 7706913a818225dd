"""Parts of the benchmark of redaction: forms of secrets, a corpus without any, and the table's rows."""
