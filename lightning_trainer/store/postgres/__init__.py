"""The store on a PostgreSQL server that several daemons may share."""
