-- From version 3 to 4: the limits of job types, as the worker that started last has them.
CREATE TABLE queuert_type_limit (type TEXT NOT NULL PRIMARY KEY, limits TEXT NOT NULL) WITHOUT ROWID
