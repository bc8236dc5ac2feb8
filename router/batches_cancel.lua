-- Its owner's wish to end it. ARGV: prefix, id. Returns the state that holds now, or false
local state = redis.call('HGET', key, 'state')
if state == 'validating' or state == 'in_progress' then
  redis.call('HSET', key, 'ending', 'cancelled')
  set_state('cancelling', now_ms())
  wake_driver(key, id)
  return 'cancelling'
end
return state
