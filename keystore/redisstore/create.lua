-- Creates a record unless there is one, for servers that refuse SET with both
-- NX and GET.
--   KEYS[1]  the record
--   ARGV[1]  the new record
--   ARGV[2]  its time to live in milliseconds, '0' for none
-- Returns nil if it was created, otherwise the record that is there.
local done
if ARGV[2] == '0' then
  done = redis.call('SET', KEYS[1], ARGV[1], 'NX')
else
  done = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
end
if done then return false end
return redis.call('GET', KEYS[1])
