-- From version 5 to 6: what workers did, by minute and hour.
CREATE TABLE queuert_activity (
    seconds   INTEGER NOT NULL,
    begins_at INTEGER NOT NULL,
    type      TEXT NOT NULL,
    worker    TEXT NOT NULL,
    report    INTEGER NOT NULL,
    numbers   TEXT NOT NULL,
    PRIMARY KEY (seconds, begins_at, type, worker)
) WITHOUT ROWID
