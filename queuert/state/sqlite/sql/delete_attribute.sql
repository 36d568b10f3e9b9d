-- A chain is gone, and so is what it was found by.
DELETE FROM queuert_chain_attribute
WHERE name = :name AND value = :value AND created_at = :created_at AND chain_id = :chain_id
