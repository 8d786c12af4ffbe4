-- Marks a record so that its next writer publishes a hint.
--   KEYS[1]  the record
--   ARGV[1]  the write id of the record that the waiter has seen
-- Returns 1 if it is marked, 0 if it has changed or gone meanwhile.
if redis.call('GETRANGE', KEYS[1], 1, 32) ~= ARGV[1] then return 0 end
redis.call('SETRANGE', KEYS[1], 33, 'w')
return 1
