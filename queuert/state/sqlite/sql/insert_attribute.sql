-- A chain can be found by this.
INSERT INTO queuert_chain_attribute (name, value, created_at, chain_id) VALUES (:name, :value, :created_at, :chain_id)
