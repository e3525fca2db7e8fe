"""Scripts behind every measured claim; each prints a table."""
