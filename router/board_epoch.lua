-- The board's epoch and its beat, in one hash. ARGV: name, what (0 begin | 1 begin unless there is one | 2 beat | 3 read |
--   4 end the epoch of that name)
-- Returns {epoch or false, beat or false}
local what = ARGV[2]
if what == '0' or (what == '1' and redis.call('HEXISTS', KEYS[1], 'epoch') == 0) then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'beat', '0')
elseif what == '2' and redis.call('HEXISTS', KEYS[1], 'epoch') == 1 then
  redis.call('HINCRBY', KEYS[1], 'beat', 1)
elseif what == '4' and redis.call('HGET', KEYS[1], 'epoch') == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'epoch')
end
return redis.call('HMGET', KEYS[1], 'epoch', 'beat')
