-- Replaces a record if it is the one that the writer has seen.
--   KEYS[1]  the record
--   ARGV[1]  the write id of the record expected
--   ARGV[2]  the new record
--   ARGV[3]  its time to live in milliseconds, '0' for none, '-1' to delete
--            the record instead
--   ARGV[4]  the channel for hints to those who wait
--   ARGV[5]  the hint
-- Returns 1 if it was done, now or by an earlier send of this write; otherwise
-- the record that is there, nil for none.
--
-- A record of an older format may be replaced by who has read it, one of a newer
-- format never.
-- The first command that writes is the one that memory can be too short for, and
-- the last that can fail: nothing is ever half done.
local head = redis.call('GETRANGE', KEYS[1], 0, 33)
local id = string.sub(head, 2, 33)
if id == ARGV[1] and string.byte(head, 1, 1) <= string.byte(ARGV[2], 1, 1) then
  if ARGV[3] == '-1' then
    redis.call('DEL', KEYS[1])
  elseif ARGV[3] == '0' then
    redis.call('SET', KEYS[1], ARGV[2])
  else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  end
  -- pcall: a hint that can't be sent must not make a write that was done look
  -- like one that failed.
  if string.sub(head, 34, 34) == 'w' then redis.pcall('PUBLISH', ARGV[4], ARGV[5]) end
  return 1
end
if id == string.sub(ARGV[2], 2, 33) then
  -- Our own earlier send. Writing a byte as it is makes this connection's last
  -- write one that replicas can acknowledge.
  redis.call('SETRANGE', KEYS[1], 0, string.sub(head, 1, 1))
  return 1
end
return redis.call('GET', KEYS[1])
