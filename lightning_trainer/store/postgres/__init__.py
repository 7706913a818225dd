"""The store on a PostgreSQL server, which several daemons may share."""
