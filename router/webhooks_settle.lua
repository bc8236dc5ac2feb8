-- What came of an attempt. KEYS[1]: the webhook; ARGV: prefix, name, attempt, outcome, wait ms, what was seen, most dead
-- Outcomes: delivered | again (in wait ms) | unsent (the same, and it was no attempt) | dead
local h = redis.call('HMGET', KEYS[1], 'state', 'attempts')
local outcome, due = ARGV[4], P .. 'webhooks'
if h[1] ~= 'waiting' then return 0 end
if outcome ~= 'delivered' and h[2] ~= ARGV[3] then return 0 end -- another has taken it meanwhile
local now = now_ms()
redis.call('HSET', KEYS[1], 'seen', ARGV[6], 'tried', whole(now))
if outcome == 'delivered' then
  redis.call('ZREM', due, ARGV[2])
  redis.call('HSET', KEYS[1], 'state', 'delivered')
  redis.call('HDEL', KEYS[1], 'body')
  redis.call('PEXPIRE', KEYS[1], 600000) -- so that a repeat of the event is known for one
elseif outcome == 'dead' then
  redis.call('ZREM', due, ARGV[2])
  redis.call('HSET', KEYS[1], 'state', 'dead')
  redis.call('ZADD', P .. 'webhooks:dead', whole(now), ARGV[2])
  local over = redis.call('ZCARD', P .. 'webhooks:dead') - tonumber(ARGV[7])
  if over > 0 then
    local oldest = redis.call('ZPOPMIN', P .. 'webhooks:dead', over)
    for i = 1, #oldest, 2 do redis.call('DEL', P .. 'webhook:' .. oldest[i]) end
  end
else
  if outcome == 'unsent' then redis.call('HINCRBY', KEYS[1], 'attempts', -1) end
  redis.call('ZADD', due, whole(now + tonumber(ARGV[5])), ARGV[2])
end
return 1
