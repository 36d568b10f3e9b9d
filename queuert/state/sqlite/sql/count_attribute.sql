-- How many chains have an attribute, as far as it matters.
SELECT count(*) FROM (SELECT 1 FROM queuert_chain_attribute WHERE name = :name AND value = :value LIMIT :limit)
