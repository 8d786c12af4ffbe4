-- Marks or removes index entries that are no longer true, each only if its
-- score is still the one that was read: an entry made again meanwhile has
-- another one, and stays.
--   KEYS[1]  the index
--   ARGV     member, score as read, new score ('' to remove it); and so on
for i = 1, #ARGV, 3 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    if ARGV[i + 2] == '' then
      redis.call('ZREM', KEYS[1], ARGV[i])
    else
      redis.call('ZADD', KEYS[1], ARGV[i + 2], ARGV[i])
    end
  end
end
return 1
