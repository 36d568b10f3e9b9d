-- From version 2 to 3: the limits of job types, as the last worker that began had them.
CREATE TABLE queuert_type_limit (type TEXT NOT NULL PRIMARY KEY, limits TEXT NOT NULL) WITHOUT ROWID
