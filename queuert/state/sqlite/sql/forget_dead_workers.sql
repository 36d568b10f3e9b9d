-- Workers whose time is over.
DELETE FROM queuert_worker WHERE expires_at <= :now
