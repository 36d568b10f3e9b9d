-- How many rows the attempts have staged that won. Staging is not logged: after a crash of the server it is empty.
SELECT count(*) FROM {schema}.{stage} WHERE tag = ANY (%(tags)s::uuid[])
