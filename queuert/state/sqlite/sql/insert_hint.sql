-- Something that others are to look at.
INSERT INTO queuert_hint (sender, topic, keys) VALUES (:sender, :topic, :keys)
